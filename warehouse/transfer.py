"""A tape from one store to another, of whatever kinds: files as they are, compared with the manifest's sums on both sides.

The manifest comes last, so that what was stopped is no tape yet; the same call goes on behind the files that are there.
"""

import shutil
from collections.abc import Callable

from tokentape.warehouse.sums import sums_of
from tokentape.warehouse.tape import BadTape, Store

_CHUNK_BYTES = 1 << 22


def transfer(source: Store, trace_id: str, target: Store, tell: Callable[[int, int], None] = lambda done, of: None) -> bool:
    """Copies a tape; False where the target has it already. tell(files done, of all).

    Raises BadTape where the tape is damaged, where a file is not at the target what it is here, or where the target has another
    tape of this name; OSError of either store.
    """
    tape, there = source.open(trace_id), target.writer(trace_id)
    manifest = source.fs.cat_file(tape.path)
    if there.is_finished:
        if target.fs.cat_file(target.trace_path(trace_id, "manifest.json")) != manifest:
            raise BadTape(f"{target.uri} holds another tape {trace_id}; remove one of them with `tokentape rm`")
        return False
    target.remove_stale()
    files = [path for table in tape.manifest.tables for path in tape.files(table)]
    for done, path in enumerate(files):
        tell(done, len(files))
        parts, wanted = path.rsplit("/", 2)[1:], tape.compare(path).file
        copy = target.trace_path(trace_id, *parts)
        if not target.fs.exists(copy) or sums_of(target.fs, copy).file != wanted:
            with source.fs.open(path, "rb") as reader, target.replacing(copy) as writer:
                shutil.copyfileobj(reader, writer, _CHUNK_BYTES)
        if sums_of(target.fs, copy).file != wanted:
            raise BadTape(f"{copy}: not what {path} is; transfer the tape again")
    target.write_card()
    target.write_bytes(target.trace_path(trace_id, "manifest.json"), manifest, once=True)
    tell(len(files), len(files))
    return True
