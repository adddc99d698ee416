"""How is a model fetched from the Hugging Face hub? As files: what is in them is read like any folder's.

Only configuration, tokenizer and safetensors files are fetched, in two goes: the shards that the index names come second.
Costs a look at the repository when it is in the cache, the download when it is not.
"""

from pathlib import Path

from sonde.models import checkpoint, folders, tokenizer_files


def fetch(name: str, *, weights: bool = True, local_files_only: bool = False) -> Path:
    """The folder of a repository in the hub's cache, its files fetched first if need be.

    Args:
        name: The repository.
        weights: Whether the weights are wanted too.
        local_files_only: Whether only the cache is asked.

    Raises:
        OSError: It is not to be had.
        ValueError: This is no name of a repository.
    """
    import huggingface_hub

    wanted = ["config.json", "generation_config.json", *tokenizer_files.FILES]
    if weights:
        wanted += [checkpoint.WEIGHTS, checkpoint.INDEX]
    path = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted, local_files_only=local_files_only))
    folder = folders.Folder(path)
    if weights and not folder.file(checkpoint.WEIGHTS) and folder.file(checkpoint.INDEX):
        shards = sorted(checkpoint.shards(folder))
        huggingface_hub.snapshot_download(name, allow_patterns=shards, local_files_only=local_files_only)
    return path
