"""A second opinion on a decode: z-lab's own `dflash_generate`, on transformers, without vLLM.

Run as a script: requests as JSON on stdin, one result each as JSON on stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ReferenceRequest:
    """One drafter to decode with.

    Attributes:
        target: Folder of the target.
        drafter: Folder of the drafter, in a form that z-lab's package reads.
        prompts: JSON Lines file of chats.
        every: Take each n-th prompt.
        max_tokens: Most tokens of an answer.
    """

    target: str
    drafter: str
    prompts: str
    every: int
    max_tokens: int


@dataclass(frozen=True)
class ReferenceResult:
    """What it did.

    Attributes:
        steps: Verification steps, all prompts together.
        outputs: Token ids of each answer, its end token included.
    """

    steps: int
    outputs: tuple[tuple[int, ...], ...]


def reference_decodes(requests: Sequence[ReferenceRequest]) -> tuple[ReferenceResult, ...]:
    """Decode each in one child process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        input=json.dumps([asdict(request) for request in requests]),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return tuple(
        ReferenceResult(found["steps"], tuple(tuple(output) for output in found["outputs"]))
        for found in json.loads(done.stdout.splitlines()[-1])
    )


class _LayerOutputs:
    """The target as `dflash_generate` uses it, with its last layer's output before the final norm.

    transformers gives the last of ``hidden_states`` after the norm; drafters are trained on, and
    vLLM captures, what the layer itself puts out.
    """

    def __init__(self, target: Any) -> None:
        self.inner = target
        self.config, self.device, self.lm_head = target.config, target.device, target.lm_head
        self.last: Any = None
        target.model.layers[-1].register_forward_hook(self._keep)

    def _keep(self, _module: Any, _inputs: Any, output: Any) -> None:
        self.last = output[0] if isinstance(output, tuple) else output

    def get_input_embeddings(self) -> Any:
        """Return the target's embedding."""
        return self.inner.get_input_embeddings()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Run the target."""
        output = self.inner(*arguments, **options)
        if output.hidden_states is not None:
            output.hidden_states = (*output.hidden_states[:-1], self.last)
        return output


def _decode(request: ReferenceRequest) -> ReferenceResult:
    import torch
    from dflash.model import DFlashDraftModel, dflash_generate
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(request.drafter)
    tokenizer = AutoTokenizer.from_pretrained(request.target)
    model = AutoModelForCausalLM.from_pretrained(request.target, dtype=torch.float32).eval()
    drafter = DFlashDraftModel.from_pretrained(folder, dtype=torch.float32).eval()
    if (folder / "mask_embedding.pt").exists():
        # z-lab's code has no place for it; into the target's row, which no text uses, as SGLang.
        own = torch.load(folder / "mask_embedding.pt", weights_only=True)
        with torch.no_grad():
            model.get_input_embeddings().weight[own["mask_token_id"]] = own["embedding"].float()
    steps, outputs = 0, []

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    drafter.register_forward_hook(count)
    target = _LayerOutputs(model)
    for line in Path(request.prompts).read_text().splitlines()[:: request.every]:
        ids = tokenizer.apply_chat_template(
            json.loads(line)["messages"],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        found = dflash_generate(
            drafter, target, ids, request.max_tokens, [tokenizer.eos_token_id], temperature=0.0
        )
        outputs.append(tuple(found[0, ids.shape[1] :].tolist()))
    return ReferenceResult(steps, tuple(outputs))


def main() -> None:
    """Decode what stdin asks for."""
    import torch

    torch.set_num_threads(1)  # faster for so small a model
    requests = [ReferenceRequest(**item) for item in json.load(sys.stdin)]
    sys.stdout.write(json.dumps([asdict(_decode(request)) for request in requests]) + "\n")


if __name__ == "__main__":
    main()
