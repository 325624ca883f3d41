"""A model of the Hugging Face hub, downloaded into the hub's own cache."""

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

# Weights, configs and tokenizers; never pickles.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
# Folders hold other formats (onnx/, original/); "consolidated" repeats the weights in Mistral's own names.
_UNWANTED = ["*/*", "consolidated*"]


def fetch_from_hub(
    repo: str,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """The repository's folder on this machine. HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are honoured.

    Raises ValueError where there is no such repository or revision, it is gated, or the hub is out of reach.
    """
    quiet = not progress and not are_progress_bars_disabled()
    if quiet:
        disable_progress_bars()
    name = repo if revision is None else f"{repo}@{revision}"
    try:
        folder = snapshot_download(
            repo,
            revision=revision,
            cache_dir=None if cache_dir is None else str(cache_dir),
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
        )
    except GatedRepoError as error:
        raise ValueError(f"{name} is gated: accept its terms on its page and set HF_TOKEN") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ValueError(f"{name} is not on the hub, or is private and HF_TOKEN does not open it") from error
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{name} is not in the hub's cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
        ) from error
    except HfHubHTTPError as error:
        raise ValueError(f"{name} could not be downloaded: {error}") from error
    finally:
        if quiet:
            enable_progress_bars()
    return Path(str(folder))
