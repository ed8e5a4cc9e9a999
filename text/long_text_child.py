"""The process that tokenises long texts: `python -m baton.text.long_text_child FOLDER`.

It reads requests from its standard input and writes replies to its standard output, one at a time,
until the input ends. `long_text_process` has the other end.
"""

import os
import resource
import struct
import sys
from array import array
from typing import BinaryIO

from baton.text.errors import EncodingError
from baton.text.tokenizer import Tokenizer

REQUEST = struct.Struct("<BQQ")  # whether to add special tokens, most tokens, bytes of UTF-8
REPLY = struct.Struct("<BQ")  # what follows, and its number: of ids, of tokens, of bytes
IDS, TOO_MANY, ERROR = 0, 1, 2
NICENESS = 10
"""Streams of other clients go first where all cores are busy."""


MEMORY = 6 << 30
"""The most memory, in bytes. A token takes some 150 bytes while it is made, so that a text of 32 MB
that has one token a byte would take 5 GB."""


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    serve(Tokenizer.from_folder(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)


def serve(tokenizer: Tokenizer, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until their stream ends. A request without text asks whether all is ready."""
    while head := requests.read(REQUEST.size):
        special, most, size = REQUEST.unpack(head)
        text = requests.read(size).decode()
        try:
            found = tokenizer.encode_upto(text, most, bool(special))
        except EncodingError as error:
            said = str(error).encode()
            replies.write(REPLY.pack(ERROR, len(said)) + said)
        else:
            if isinstance(found, int):
                replies.write(REPLY.pack(TOO_MANY, found))
            else:
                replies.write(REPLY.pack(IDS, len(found)) + array("I", found).tobytes())
        replies.flush()


if __name__ == "__main__":
    main()
