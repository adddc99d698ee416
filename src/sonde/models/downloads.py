"""How is a model fetched from the Hugging Face hub? As files: what is in them is read like any folder's.

Only configuration, tokenizer and safetensors files are fetched, in two goes: the shards that the index names come second. The
hub's own client takes half a minute of logged retries to find out that there is no network, so first the hub is asked
whether it is there, in at most two seconds and without a word; where it does not answer, what it gave earlier is taken from its cache.

Costs a look at the repository when it is in the cache, the download when it is not.
"""

import threading
from pathlib import Path

from sonde.models import checkpoint, folders, tokenizer_files

SECONDS = 2.0


def fetch(name: str, *, weights: bool = True) -> Path:
    """The folder of a repository in the hub's cache, its files fetched first if need be.

    Args:
        name: The repository.
        weights: Whether the weights are wanted too.

    Raises:
        OSError: It is not to be had.
        ValueError: This is no name of a repository.
    """
    import huggingface_hub

    wanted, cached = ["config.json", "generation_config.json", *tokenizer_files.FILES], not _answers()
    if weights:
        wanted += [checkpoint.WEIGHTS, checkpoint.INDEX]
    path = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted, local_files_only=cached))
    folder = folders.Folder(path)
    if weights and not folder.file(checkpoint.WEIGHTS) and folder.file(checkpoint.INDEX):
        shards = sorted(checkpoint.shards(folder))
        huggingface_hub.snapshot_download(name, allow_patterns=shards, local_files_only=cached)
    return path


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
