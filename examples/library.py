"""Use the framework as a library: the records of a file and of a folder, without Iggy.

python examples/library.py examples/data
"""

import sys
from pathlib import Path

from local_folder import FolderTask

from transformers import InputOptions, LocalFileInput, make_transformer

folder = Path(sys.argv[1])

# One file, one format:
for payload in make_transformer(InputOptions(format="jsonl")).records(LocalFileInput(folder / "weather.jsonl")):
    print("record", payload.decode())

# A source, read once. The sections are those of a TOML file.
with FolderTask() as task:
    task.start(
        {
            "source": {"name": "example"},
            "folder": {"path": str(folder)},
            "input": {"format": "auto"},
            "iggy": {"url": "embedded:unused", "stream": "none", "topic": "none"},
        },
        once=True,
    )
    while not task.finished:
        for batch in task.poll(timeout_seconds=0.1):
            print(batch.native.key, "records", batch.first_record, "to", batch.last_record)
