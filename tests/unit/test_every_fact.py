"""Every fact that a drafter can have, in every kind of drafter and form: written, or refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from formats_table import tensors_of
from made import LAGUNA, native, target

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.conversion import comparable
from dflash_pack.converters.registry import WRITERS, read_drafter
from dflash_pack.drafter import (
    Dflash2Parts,
    Drafter,
    DraftLayer,
    DsparkParts,
    Rope,
)
from dflash_pack.errors import NotRepresentableError

SEED = {"fc.weight": TensorSpec("BF16", (16, 32))}
PLAIN = read_drafter(Contents(native(), SEED, frozenset())).drafter
BASES = {
    "dflash": PLAIN,
    "dflash2": replace(PLAIN, parts=Dflash2Parts(3, 8, 4, 2)),
    "dspark": replace(PLAIN, parts=DsparkParts(4, "vanilla", True, True), sample_from_anchor=True),
    "laguna": read_drafter(Contents(native(**LAGUNA), SEED, frozenset())).drafter,
}
YARN = (("factor", 4.0), ("original_max_position_embeddings", 512))
WINDOW = DraftLayer(window=16, causal=True)
CHANGES = {
    "attention sinks": {"attention_sinks": True},
    "attention value scale": {"attention_value_scale": 0.5},
    "input embedding scale": {"input_embedding_scale": 2.0},
    "output multiplier": {"output_multiplier": 0.5},
    "softcap": {"final_logit_softcapping": 30.0},
    "causal": {"layers": (DraftLayer(None, True),) * 2},
    "bidirectional": {"layers": (DraftLayer(None, False),) * 2},
    "sliding": {"layers": (WINDOW,) * 2},
    "sliding bidirectional": {"layers": (DraftLayer(16, False),) * 2},
    "mixed": {"layers": (WINDOW, DraftLayer(None, False))},
    "two windows": {"layers": (WINDOW, DraftLayer(8, True))},
    "embedding captured": {"target_layer_ids": (-1, 2)},
    "last layer captured": {"target_layer_ids": (0, 3)},
    "yarn": {"rope": Rope("yarn", 1e4, YARN)},
    "partial rope": {"rope": Rope("default", 1e4, (), 0.5), "attention_sinks": True},
    "fewer tokens": {"proposal_tokens": 2},
    "own matrices": {"vocabulary": replace(PLAIN.vocabulary, embedding="own", head="own")},
    "mask embedding": {"vocabulary": replace(PLAIN.vocabulary, mask_embedding=True)},
    "biases": {"geometry": replace(PLAIN.geometry, attention_bias=True)},
    "epsilon": {"geometry": replace(PLAIN.geometry, rms_norm_eps=1e-3)},
    "head size": {"geometry": replace(PLAIN.geometry, head_dim=32)},
    "float16": {"dtype": "F16"},
    "wider target": {"target_hidden_size": 32},
    "reduced vocabulary": {"vocabulary": replace(PLAIN.vocabulary, head="own", draft_size=32)},
}

# What no reader finds in other kinds: only MiMo's trainer turns a part of each head, for plain
# drafters with sinks; DFlash2 drafts over the whole vocabulary.
ONLY_IN = {
    "partial rope": {"dflash"},
    "reduced vocabulary": {"dflash", "dspark", "laguna"},
}


def read_back(drafter: Drafter, form: str) -> Drafter:
    config = WRITERS[form](drafter, target()).config
    side_files = {"mask_embedding.pt"} if drafter.vocabulary.mask_embedding else set()
    tensors = {
        name: replace(spec, dtype=drafter.dtype) if spec.dtype == "BF16" else spec
        for name, spec in tensors_of(drafter).items()
    }
    return read_drafter(Contents(config, tensors, frozenset(side_files))).drafter


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize(
    ("family", "change"),
    [(f, c) for f in BASES for c in CHANGES if f in ONLY_IN.get(c, BASES)],
)
def test_what_is_written_is_read_back_the_same(family, change, form):
    drafter = replace(BASES[family], **CHANGES[change])
    with suppress(NotRepresentableError):
        assert comparable(read_back(drafter, form)) == comparable(drafter)


@pytest.mark.parametrize("family", BASES)
def test_each_kind_has_a_form(family):
    assert comparable(read_back(BASES[family], "native")) == comparable(BASES[family])
