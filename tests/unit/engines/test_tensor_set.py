from engine_files import HIDDEN, LAYERS, contents, native, shapes

from dflash_pack.checkpoint import TensorSpec
from dflash_pack.drafter import Geometry
from dflash_pack.engines.tensor_set import (
    compare_tensors,
    engine_shapes,
    is_quantised,
    name_some,
)

GEOMETRY = Geometry(
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    max_position_embeddings=256,
)


def specs(**changes):
    have = shapes() | {name.replace("__", "."): shape for name, shape in changes.items()}
    return {name: TensorSpec("F32", shape) for name, shape in have.items() if shape is not None}


def test_the_core_set_of_a_geometry():
    assert engine_shapes(GEOMETRY, LAYERS, 2 * HIDDEN) == shapes()


def test_missing_unexpected_and_misshapen_tensors_are_told_apart():
    have = specs(foo=(1,), norm__weight=None, fc__weight=(2, 2))
    found = compare_tensors(have, shapes())
    assert found.missing == ("norm.weight",)
    assert found.unexpected == ("foo",)
    assert found.misshapen == ("fc.weight has shape [2, 2], and the config asks for [64, 128].",)


def test_quantised_weights_may_have_other_names_and_shapes_but_not_no_module():
    have = specs(fc__weight=None)
    packed = have | {
        "fc.weight_packed": TensorSpec("U8", (1,)),
        "fc.weight_scale": TensorSpec("F8_E4M3", (1,)),
    }
    assert compare_tensors(packed, shapes(), quantised=True) == compare_tensors(
        specs(), shapes(), quantised=True
    )
    assert compare_tensors(have, shapes(), quantised=True).missing == ("fc.weight",)
    stray = packed | {"other.weight": TensorSpec("F32", (1,))}
    assert compare_tensors(stray, shapes(), quantised=True).unexpected == ("other.weight",)


def test_quantisation_is_declared_in_the_config_or_beside_it():
    assert not is_quantised(contents(native()))
    assert is_quantised(contents(native(quantization_config={})))
    assert is_quantised(contents(native(), side_files=frozenset({"hf_quant_config.json"})))


def test_long_lists_of_names_are_cut():
    assert name_some(["a", "b"]) == "a, b"
    assert name_some(list("abcdef")) == "a, b, c, d and 2 more"
