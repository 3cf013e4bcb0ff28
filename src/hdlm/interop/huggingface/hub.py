"""A folder sent to the Hugging Face hub.

The token comes from the environment alone, and nothing of it is ever said.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from hdlm.errors import UnwrittenError, first_line

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def check_push(name: str) -> str:
    """The token to push a model as owner/name with, refused before work begins if it could not be done."""
    try:
        from huggingface_hub.utils import validate_repo_id
    except ImportError:
        raise ValueError("to push a model needs: pip install 'hdlm[hub]'") from None
    try:
        validate_repo_id(name)
    except ValueError as error:
        raise ValueError(f"push = {name!r} is not accepted: {first_line(error)}") from None
    if name.count("/") != 1:
        raise ValueError(f"push = {name!r} is not accepted: it must be owner/name, a model on the hub")
    token = next((os.environ[name].strip() for name in TOKENS if os.environ.get(name, "").strip()), None)
    if token is None:
        raise ValueError(f"to push a model needs a token of the hub that may write, in ${TOKENS[0]}: there is none")
    return token


def push(folder: Path, files: Sequence[str], name: str, *, private: bool = False) -> str:
    """Send those of some files that a folder has to the model owner/name, made where there is none; gives its address.

    `private`: of one that is made. A failure is an `UnwrittenError`.
    """
    token = check_push(name)
    from huggingface_hub import HfApi

    try:
        api = HfApi(token=token)
        address = api.create_repo(repo_id=name, private=private or None, exist_ok=True)
        how = {"allow_patterns": list(files), "commit_message": "Model exported by hdlm"}
        api.upload_folder(repo_id=name, folder_path=folder, **how)
    except Exception as error:
        raise UnwrittenError(f"{name} could not be pushed: {first_line(error).replace(token, '***')}") from None
    return str(address)
