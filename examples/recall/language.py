"""The words of the recall language, in token order. No torch, no tokenizer."""

from collections.abc import Sequence

END = "<end>"
UNKNOWN = "<unk>"

NAMES = """
    ada ben cleo dan eve finn gus hana ivo jade kato lima mimo nora otto pia quinn rosa sami
    tess udo vera walt xena yuri zoe amos bree cody dora emil faye gino hugo iris joss kira
    lars mona nico olga pavel remy sven thea ugo vito wren
""".split()
THINGS = """
    plum fig pear kiwi lime mango melon peach cherry grape lemon apple bread cheese honey
    rice soup salad pasta pizza tea milk juice cocoa chess tennis golf rugby music books
    films trains
""".split()
BOXES = "red blue green gold pink grey".split()
DIGITS = [str(digit) for digit in range(10)]
# Unknown words are read as chatter: other words that a person types do no harm.
CHATTER = [*"well so um hmm okay then right anyway fine sure".split(), UNKNOWN]

# Ids are positions in this list; appending keeps old checkpoints readable, inserting does not.
VOCABULARY: tuple[str, ...] = (
    UNKNOWN,
    END,
    *".:",
    "likes",
    "add",
    "drop",
    "ask",
    "say",
    *DIGITS,
    *BOXES,
    *THINGS,
    *NAMES,
    *CHATTER[:-1],
)
IDS = {word: index for index, word in enumerate(VOCABULARY)}


def encode(words: Sequence[str]) -> list[int]:
    """Return the token ids of words. Raises KeyError for the first unknown word."""
    return [IDS[word] for word in words]
