"""Where tokenizers come from: bundles, GGUF files, Hugging Face folders, files of their own."""

from __future__ import annotations

from pathlib import Path

from lumc.bundle import manifest
from lumc.disk.artifact import read_text
from lumc.disk.attached import NAME
from lumc.disk.gguf import is_gguf, read_gguf
from lumc.errors import Exit, LumcError
from lumc.runtime.opened import read_checked
from lumc.tokenizer.folder import has_tokenizer, of_folder
from lumc.tokenizer.gguf import of_gguf
from lumc.tokenizer.tokenizer import Tokenizer, parse


def of_source(path: str) -> Tokenizer:
    """That of a GGUF file, of a folder with tokenizer.json, or of what ``lumc import`` wrote beside
    a graph. Raises E0201, E0321, E0340, E0343, E0501."""
    place = Path(path)
    if place.is_dir():
        if not has_tokenizer(place):
            what, fix = (
                f"{path} has no tokenizer.json",
                "name a GGUF file, or a folder that has one",
            )
            raise LumcError("E0343", what, fix=fix, exit=Exit.UNSUPPORTED)
        return of_folder(place)
    if is_gguf(place):
        return of_gguf(read_gguf(place))
    return parse(read_text(path)[0], path)


def of_bundle(folder: Path, named: str) -> Tokenizer:
    """That of a bundle, which lies in this folder. Raises E0619 where it has none, E0501."""
    files = manifest.read(folder)["files"]
    if NAME not in files:
        what = f"'{named}' has no tokenizer"
        fix = "name the file or folder that the model comes from: --tokenizer FILE"
        raise LumcError("E0619", what, fix=fix, exit=Exit.USAGE)
    return parse(read_checked(folder, files, NAME).decode(errors="replace"), f"{named}/{NAME}")
