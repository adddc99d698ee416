"""Can the Hugging Face hub be asked? Found out once per load, in at most two seconds and without a word.

The hub's own client takes half a minute of logged retries to find out that there is no network. Where the hub does not
answer, what it gave earlier is still loaded from its cache.
"""

import threading
from pathlib import Path
from typing import Any

SECONDS = 2.0


def options(source: str) -> dict[str, Any]:
    """What to tell `from_pretrained`: to look at this machine's files only, for a folder and where no hub answers."""
    return {"local_files_only": Path(source).is_dir() or not _answers()}


def _answers() -> bool:
    found = threading.Event()
    # Looking up a name has no time limit of its own.
    asking = threading.Thread(target=_ask, args=(found,), daemon=True)
    asking.start()
    asking.join(SECONDS)
    return found.is_set()


def _ask(found: threading.Event) -> None:
    from huggingface_hub import constants, utils

    try:
        utils.get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # whatever it is, there is no hub: offline mode, no network, a proxy that refuses
        return
    found.set()
