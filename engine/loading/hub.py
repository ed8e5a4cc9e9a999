"""Models by their id on the Hugging Face hub, kept in the hub library's own cache."""

import re
from pathlib import Path

from baton.core.errors import ConfigError

# The files of a model that are read: none below its top folder, no other weight formats.
_WANTED = ("*.json", "*.jinja", "*.safetensors")
_UNWANTED = ("*/*", "consolidated*.safetensors")
_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


def find_model(
    model: str, revision: str | None = None, offline: bool = False, cache: Path | None = None
) -> Path:
    """Return the folder of `model`, which is one, or the id (owner/name) of a model on the hub.

    What the cache lacks is downloaded, with the hub library's bars on standard error. It reads
    HF_HOME and HF_TOKEN, as its other users do.

    revision: a branch, tag or commit; None: the main branch. Of an id alone.
    offline:  nothing but the cache is looked at.
    cache:    None: the hub library's.
    Raises ConfigError.
    """
    folder = Path(model)
    if folder.is_dir() or _ID.fullmatch(model) is None:
        if revision is not None:
            raise ConfigError(
                f"a revision ({revision}) goes with the id of a model on the hub; {model} is a path"
            )
        return folder
    return _download(model, revision, offline, cache)


def _download(model: str, revision: str | None, offline: bool, cache: Path | None) -> Path:
    # Imported here because it takes half a second, and a model folder does not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    named = model if revision is None else f"{model} at revision {revision}"
    try:
        found = snapshot_download(
            model,
            revision=revision,
            cache_dir=cache,
            local_files_only=offline,
            allow_patterns=list(_WANTED),
            ignore_patterns=list(_UNWANTED),
        )
    except GatedRepoError as err:
        raise ConfigError(
            f"{named} is gated: accept its terms on huggingface.co and set HF_TOKEN to a token "
            "of that account"
        ) from err
    except RevisionNotFoundError as err:
        raise ConfigError(f"the hub has {model}, but no revision {revision} of it") from err
    except RepositoryNotFoundError as err:
        raise ConfigError(
            f"there is no folder {model}, and the hub has no model of that id (or HF_TOKEN may "
            "not read it)"
        ) from err
    except LocalEntryNotFoundError as err:
        reached = str(err).splitlines()[0]
        why = "nothing is downloaded in offline mode" if offline else f"no download: {reached}"
        raise ConfigError(
            f"there is no folder {model}, and the hub's cache here has no whole copy of {named}; "
            f"{why}"
        ) from err
    except (HfHubHTTPError, HFValidationError, OSError) as err:
        raise ConfigError(f"cannot download {named}: {err}") from err
    return Path(found)
