import subprocess
import sys

from engine_files import contents, native, speculators, target, universal

from dflash_pack.engines.registry import ENGINES, derive_all


def test_every_engine_answers_in_order():
    found = derive_all(contents(universal()), target())
    assert [meaning.engine for meaning in found] == [engine.name for engine in ENGINES]
    assert [meaning.engine for meaning in found] == ["vllm", "speculators", "zlab"]
    assert all(meaning.refusals == () for meaning in found)


def test_an_engine_that_does_not_read_the_form_says_which_it_reads():
    native_view = {meaning.engine: meaning for meaning in derive_all(contents(native()), target())}
    assert "--format speculators" in native_view["speculators"].refusals[0]
    pure_view = {
        meaning.engine: meaning for meaning in derive_all(contents(speculators()), target())
    }
    assert "--format native" in pure_view["zlab"].refusals[0]


def test_deriving_imports_no_engine():
    code = (
        "import sys, dflash_pack.engines.registry, dflash_pack.engines.limits;"
        "heavy = {'torch', 'transformers', 'vllm', 'speculators', 'dflash', 'pydantic'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
