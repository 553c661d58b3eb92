import pytest
from engine_files import ABSENT, contents, native, speculators, target, universal

from dflash_pack.engines.vllm import derive


def notes(config, facts=None, version="0.33"):
    return " ".join(derive(contents(config), facts, version=version).notes)


def test_native_files_need_method_and_k():
    text = notes(native())
    assert 'method "dflash" explicitly' in text
    assert "num_speculative_tokens" in text


@pytest.mark.parametrize("form", [speculators, universal])
def test_files_that_serve_alone_still_need_the_method_when_named(form):
    text = notes(form())
    assert "vllm serve on this folder alone takes it from the file" in text
    assert "num_speculative_tokens" not in text


@pytest.mark.parametrize("name", ["/models/target", "./target", "a/b/c", ""])
def test_only_0_33_refuses_a_local_verifier(name):
    assert "no Hub id" in notes(speculators(verifier=name))
    assert "no Hub id" not in notes(speculators(verifier=name), version="0.32")


def test_a_verifier_that_is_not_named():
    assert "not named" in notes(speculators(verifier=None))


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (universal(transformer_layer_config=ABSENT), "transformer_layer_config"),
        (universal(speculators_model_type="xpress"), "xpress"),
        (universal(speculators_config={"proposal_methods": []}), "speculative_tokens"),
        (
            universal(
                speculators_config={"proposal_methods": [{"speculative_tokens": 7}]},
            ),
            "name_or_path",
        ),
    ],
)
def test_what_stops_vllm_serve_on_the_folder_alone_is_no_refusal(config, word):
    found = derive(contents(config), None)
    assert found.refusals == ()
    assert any(word in note and "alone fails" in note for note in found.notes)


def test_0_32_reads_outside_a_short_rope_cache():
    longer = target(max_position_embeddings=1024)
    assert "--max-model-len 256" in notes(native(), longer, "0.32")
    assert "256" not in notes(native(), longer, "0.33")
    assert "256" not in notes(native(), target(), "0.32")
    assert "256" not in notes(native(), target(max_position_embeddings=None), "0.32")


def test_0_33_limits_the_context_where_the_rope_is_scaled():
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    config = native(rope_parameters=yarn)
    assert "limits" in notes(config, target(max_position_embeddings=1024))
    assert "limits" not in notes(config, target())
