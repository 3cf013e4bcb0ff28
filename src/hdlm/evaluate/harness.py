"""lm-evaluation-harness with the model `hdlm`:

    python -m hdlm.evaluate.harness --model hdlm --model_args path=CKPT --tasks TASK [any other lm_eval flag]

registers it (`harness_model.py`) and hands over to `lm_eval`, which has no plug-ins of its own.
"""

import importlib


def main() -> None:
    """Register the model and run the harness."""
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    importlib.import_module("hdlm.evaluate.harness_model")
    cli_evaluate()


if __name__ == "__main__":
    main()
