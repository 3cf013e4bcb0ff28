"""A model folder for the commands to work with."""

import pytest
from support.bundles import LETTERS, letters

from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import preset
from hdlm.config.process import ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.nn.transformer import Denoiser


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A small untrained model of letters, shifted, trained on blocks of 4 in name."""
    model = preset("tiny", len(LETTERS))
    config = BundleConfig(
        model,
        ProcessConfig("epsilon", epsilon=0.1),
        ScheduleConfig("block", 32, width=4),
        shifted=True,
        bos_id=3,
        next_token=True,
        mixture=(ScheduleConfig("flat", 32),),
    )
    return str(Bundle(Denoiser(model), config, letters()).save(tmp_path_factory.mktemp("m") / "letters"))
