"""Train the tiny pair on CPU: a Qwen3 target with its own tokenizer, then a DFlash drafter.

Run as `python examples/tiny/train.py`, which writes `target/`, `drafter/` and `prompts.jsonl`. With
`--only drafter --name NAME` and options of `variant.py` it writes another drafter, `golden/NAME/`.
Needs torch, transformers and z-lab's `dflash` 0.1.0 (`pip install --no-deps dflash==0.1.0`),
whose own model class is the one that is trained here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import torch
import variant as variants
from dflash import DFlashDraftModel
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from variant import BLOCK_SIZE

VOCAB_SIZE = 512
TARGET_ID = "dflash-pack/tiny-target"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
END_OF_TEXT, _, TURN_END, MASK = SPECIAL_TOKENS
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# GPT-style word pieces, but each digit stands alone so that numbers are easy to learn.
WORD_PIECES = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"
IGNORE = -100
MAX_NEW_TOKENS = 96

GEOMETRY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "use_cache": True,
}


@dataclass(frozen=True)
class Document:
    """A chat as token ids, and where its answer begins."""

    ids: list[int]
    answer_start: int


def train_tokenizer(seed: int, exclude: set[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the corpus; the four special tokens take the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    examples = itertools.islice(corpus.training(seed, exclude), 5000)
    roles = "user\nassistant\n"
    tokenizer.train_from_iterator((f"{roles}{e.prompt}\n{e.answer}" for e in examples), trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        mask_token=MASK,
        model_max_length=GEOMETRY["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    if len(fast) != VOCAB_SIZE:
        raise SystemExit(f"the tokenizer has {len(fast)} tokens instead of {VOCAB_SIZE}")
    return fast


def chat_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """Token ids of a one-turn chat, up to where the answer starts."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def documents(
    tokenizer: PreTrainedTokenizerFast, seed: int, exclude: set[str]
) -> Iterator[Document]:
    """Yield training chats without end."""
    for example in corpus.training(seed, exclude):
        prompt = chat_ids(tokenizer, example.prompt)
        answer = tokenizer(example.answer, add_special_tokens=False)["input_ids"]
        yield Document(prompt + answer + [tokenizer.eos_token_id], len(prompt))


def padded(batch: list[Document], value: int) -> Tensor:
    """Stack documents to int64 [batch, longest], filled up on the right with `value`."""
    rows = [torch.tensor(d.ids) for d in batch]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def one_cycle(
    model: nn.Module, steps: int, peak: float
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.OneCycleLR]:
    """AdamW with a one-cycle learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=peak, total_steps=steps, pct_start=0.15
    )
    return optimizer, schedule


def update(
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    schedule: torch.optim.lr_scheduler.OneCycleLR,
) -> None:
    """Apply the gradients that were accumulated."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)


def train_target(
    tokenizer: PreTrainedTokenizerFast, steps: int, seed: int, exclude: set[str]
) -> Qwen3ForCausalLM:
    """Train the target on whole chats, the answer weighing more than the question."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        **GEOMETRY,
        num_hidden_layers=4,
        intermediate_size=384,
        max_window_layers=4,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).train()
    optimizer, schedule = one_cycle(model, steps, peak=3e-3)
    stream = documents(tokenizer, seed, exclude)
    for step in range(1, steps + 1):
        batch = list(itertools.islice(stream, 16))
        ids, labels = padded(batch, tokenizer.pad_token_id), padded(batch, IGNORE)[:, 1:]
        logits = model(input_ids=ids).logits[:, :-1]
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        starts = torch.tensor([d.answer_start for d in batch])[:, None]
        in_answer = torch.arange(labels.shape[1])[None] >= starts - 1
        weights = torch.where(in_answer, 1.0, 0.1) * (labels != IGNORE)
        loss = (losses.view_as(weights) * weights).sum() / weights.sum()
        loss.backward()
        update(model, optimizer, schedule)
        if step % 100 == 0 or step == steps:
            print(f"target step {step}/{steps} loss {loss.item():.3f}", flush=True)
    return model.eval()


def save_target(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the target in bfloat16 with its tokenizer and generation defaults."""
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"
    content = json.loads(settings.read_text())
    # The name that transformers 4 and 5 both know, instead of the one that only 5 does.
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(content, indent=2) + "\n")


def continuations(
    target: Qwen3ForCausalLM, prompts: list[list[int]], eos: int, batch_size: int = 256
) -> list[Document]:
    """Let the target answer the prompts greedily; answers that never end are dropped."""
    by_length: dict[int, list[list[int]]] = defaultdict(list)
    for prompt in prompts:  # equal lengths need no padding
        by_length[len(prompt)].append(prompt)
    found: list[Document] = []
    for length, group in sorted(by_length.items()):
        for first in range(0, len(group), batch_size):
            ids = torch.tensor(group[first : first + batch_size])
            with torch.inference_mode():
                out = target.generate(ids, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
            for row in out.tolist():
                if eos in row[length:]:
                    end = row.index(eos, length)
                    found.append(Document(row[: end + 1], length))
    return found


def capture(
    target: Qwen3ForCausalLM, data: list[Document], layer_ids: list[int], batch_size: int = 64
) -> list[Tensor]:
    """Run the target once over all documents; a [length, layers * hidden] tensor for each.

    What is captured is the output of the layers themselves, as engines do: transformers'
    `hidden_states` has the last one after the final norm.
    """
    states: dict[int, Tensor] = {}

    def keep(index: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            states[index] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [target.model.layers[i].register_forward_hook(keep(i)) for i in layer_ids]
    features: list[Tensor] = []
    for first in range(0, len(data), batch_size):
        batch = data[first : first + batch_size]
        with torch.no_grad():
            target(padded(batch, 0), logits_to_keep=1)
        joined = torch.cat([states[index] for index in layer_ids], dim=-1)
        features += [row[: len(d.ids)].clone() for row, d in zip(joined, batch, strict=True)]
    for hook in hooks:
        hook.remove()
    return features


def frequent_tokens(data: list[Document], size: int, always: set[int]) -> Tensor:
    """Return the ids, ascending, of the `size` most frequent tokens of the answers [size].

    Tokens that never occur fill up from the lowest id; `always` are among them, the mask never is.
    """
    counts = Counter(token for d in data for token in d.ids[d.answer_start :])
    ranked = [token for token, _ in counts.most_common()]
    ranked += [token for token in range(VOCAB_SIZE - 1) if token not in counts]
    kept = sorted([*always, *(token for token in ranked if token not in always)][:size])
    return torch.tensor(kept)


class Borrowed(nn.Module):
    """What a drafter borrows of its target, and the few things that may be its own instead.

    Args:
        target: The frozen target.
        mask_token_id: Token whose embedding fills the masked slots.
        own_mask: Whether that embedding is trained instead of the target's row.
        kept: Token ids of the draft vocabulary, None for all.
    """

    def __init__(
        self, target: Qwen3ForCausalLM, mask_token_id: int, *, own_mask: bool, kept: Tensor | None
    ) -> None:
        super().__init__()
        self.embedding = target.get_input_embeddings()
        self.mask_token_id = mask_token_id
        rows = self.embedding.weight[mask_token_id].detach().clone()
        self.mask_embedding = nn.Parameter(rows) if own_mask else None
        self.kept = torch.arange(VOCAB_SIZE) if kept is None else kept
        self.head = nn.Linear(target.config.hidden_size, len(self.kept), bias=False)
        self.head.weight = nn.Parameter(target.lm_head.weight[self.kept], requires_grad=False)
        self.draft_ids = torch.full((VOCAB_SIZE,), -1)
        self.draft_ids[self.kept] = torch.arange(len(self.kept))

    def embed(self, block: Tensor) -> Tensor:
        """Embeddings of a block of tokens [rows, block, hidden]."""
        embedded = self.embedding(block)
        if self.mask_embedding is None:
            return embedded
        return torch.where((block == self.mask_token_id)[..., None], self.mask_embedding, embedded)

    def to_draft(self, wanted: Tensor) -> Tensor:
        """Ids in the draft vocabulary; IGNORE for padding, -1 for tokens it lacks."""
        return torch.where(wanted == IGNORE, IGNORE, self.draft_ids[wanted.clamp(min=0)])


def draft_loss(
    drafter: DFlashDraftModel, borrowed: Borrowed, context: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss of one block per row, and how many of its tokens would be accepted.

    Args:
        drafter: The model being trained.
        borrowed: The frozen embedding and head that the drafter borrows.
        context: Captured states of the tokens before the block [rows, anchor, layers * hidden].
        wanted: The block's true tokens, IGNORE beyond a document's end [rows, block].

    All rows share one anchor, so contexts are equally long: no padding, hence no mask of ours,
    and each layer applies its own window and causality exactly as in decoding.
    """
    rows, anchor = context.shape[:2]
    block = torch.full((rows, BLOCK_SIZE), drafter.mask_token_id)
    block[:, 0] = wanted[:, 0]
    hidden = drafter(
        position_ids=torch.arange(anchor + BLOCK_SIZE)[None].expand(rows, -1),
        noise_embedding=borrowed.embed(block),
        target_hidden=context,
    )[:, 1:]
    logits = drafter.compute_logits(hidden, borrowed.head)
    wanted = borrowed.to_draft(wanted[:, 1:])
    known = wanted >= 0
    losses = cross_entropy(
        logits.flatten(0, 1), wanted.where(known, IGNORE).flatten(), reduction="none"
    )
    decay = torch.exp(-torch.arange(BLOCK_SIZE - 1) / 4.0)  # early tokens gate the later ones
    accepted = (logits.argmax(-1) == wanted).int().cumprod(-1).sum(-1)
    return (losses.view_as(wanted) * decay * known).sum() / rows, accepted


def train_drafter(
    borrowed: Borrowed, features: list[Tensor], data: list[Document], config: Qwen3Config, args: Any
) -> DFlashDraftModel:
    """Train the drafter on two anchors a step, 32 blocks each."""
    torch.manual_seed(args.seed)
    drafter = DFlashDraftModel(config).train()
    trained = nn.ModuleList([drafter])
    if borrowed.mask_embedding is not None:
        trained.register_parameter("mask_embedding", borrowed.mask_embedding)
    tokens = pad(padded(data, IGNORE), (0, BLOCK_SIZE), value=IGNORE)
    # An anchor is a token of the answer with at least one more behind it.
    starts = torch.tensor([d.answer_start for d in data])
    ends = torch.tensor([len(d.ids) - 1 for d in data])
    steps = args.drafter_steps
    optimizer, schedule = one_cycle(trained, steps, peak=3e-3)
    accepted_counts: list[int] = []
    for step in range(1, steps + 1):
        losses = []
        for document in torch.randint(len(data), (2,)).tolist():
            anchor = int(torch.randint(int(starts[document]), int(ends[document]), ()))
            fit = ((starts <= anchor) & (anchor < ends)).nonzero()[:, 0]
            rows = fit[torch.randint(len(fit), (32,))]
            context = torch.stack([features[row][:anchor] for row in rows.tolist()])
            wanted = tokens[rows, anchor : anchor + BLOCK_SIZE]
            loss, accepted = draft_loss(drafter, borrowed, context, wanted)
            losses.append(loss)
            accepted_counts += accepted.tolist()
        mean_loss = torch.stack(losses).mean()
        mean_loss.backward()
        update(trained, optimizer, schedule)
        if step % 100 == 0 or step == steps:
            acceptance = 1 + sum(accepted_counts) / len(accepted_counts)
            print(
                f"drafter step {step}/{steps} loss {mean_loss.item():.3f} "
                f"acceptance {acceptance:.2f}",
                flush=True,
            )
            accepted_counts.clear()
    return drafter.eval()


def save_drafter(
    drafter: DFlashDraftModel, borrowed: Borrowed, config: dict[str, Any], out: Path
) -> None:
    """Write `config.json` word for word as given, and the weights in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in drafter.state_dict().items()}
    kept = borrowed.kept
    if len(kept) < VOCAB_SIZE:
        state["lm_head.weight"] = borrowed.head.weight.to(torch.bfloat16)
        state["d2t"] = kept - torch.arange(len(kept))
        state["t2d"] = borrowed.draft_ids >= 0
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    if borrowed.mask_embedding is not None:
        row = borrowed.mask_embedding.detach().to(torch.bfloat16)
        content = {"embedding": row, "mask_token_id": borrowed.mask_token_id}
        torch.save(content, out / "mask_embedding.pt")


def report_target(
    target: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: list[corpus.Example]
) -> None:
    """Print how many held-out answers are right, their length, and how clear the choices are."""
    right, lengths, margins = 0, [], []
    for example in examples:
        prompt = chat_ids(tokenizer, example.prompt)
        with torch.inference_mode():
            out = target.generate(
                torch.tensor([prompt]),
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        answer = tokenizer.decode(out.sequences[0, len(prompt) :], skip_special_tokens=True)
        right += answer == example.answer
        if answer != example.answer:
            print(f"  {example.prompt!r}: {answer!r}")
        best = torch.cat(out.logits).float().topk(2).values
        margins += (best[:, 0] - best[:, 1]).tolist()
        lengths.append(out.sequences.shape[1] - len(prompt))
    narrow = sum(m < 0.5 for m in margins)
    print(
        f"held out: {right}/{len(examples)} answers right, {min(lengths)}-{max(lengths)} tokens "
        f"(mean {sum(lengths) / len(lengths):.0f}), {narrow} of {len(margins)} choices closer "
        f"than 0.5 logits, closest {min(margins):.3f}"
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the tiny target and its DFlash drafter.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target-steps", type=int, default=1000)
    parser.add_argument("--drafter-steps", type=int, default=2000)
    parser.add_argument("--documents", type=int, default=4000, help="texts for the drafter")
    parser.add_argument(
        "--own-answers", action="store_true", help="train the drafter on the target's own answers"
    )
    parser.add_argument("--only", choices=["target", "drafter"], help="train one half only")
    parser.add_argument("--threads", type=int, default=2)
    variants.add_options(parser)
    return parser.parse_args()


def make_target(args: argparse.Namespace, examples: list[corpus.Example]) -> None:
    """Train and save tokenizer, target and the held-out prompts."""
    exclude = {e.prompt for e in examples}
    tokenizer = train_tokenizer(args.seed, exclude)
    save_target(
        train_target(tokenizer, args.target_steps, args.seed, exclude),
        tokenizer,
        args.out / "target",
    )
    lines = [json.dumps({"messages": [{"role": "user", "content": e.prompt}]}) for e in examples]
    (args.out / "prompts.jsonl").write_text("\n".join(lines) + "\n")


def make_drafter(args: argparse.Namespace, examples: list[corpus.Example]) -> None:
    """Train and save the drafter for the target as saved: rounded to bfloat16, run in float32."""
    folder = args.out / "target"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    target = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    report_target(target, tokenizer, examples)
    # Another seed than the target's text: questions that it has mostly not seen.
    stream = documents(tokenizer, args.seed + 1, {e.prompt for e in examples})
    data = list(itertools.islice(stream, args.documents))
    if args.own_answers:
        prompts = [d.ids[: d.answer_start] for d in data]
        data = continuations(target, prompts, tokenizer.eos_token_id)
        print(f"{len(data)} of {args.documents} answers end", flush=True)
    variant = variants.from_options(args)
    native = variants.native_config(
        variant,
        GEOMETRY,
        mask_token_id=tokenizer.mask_token_id,
        eos_token_id=tokenizer.eos_token_id,
        target_layers=target.config.num_hidden_layers,
    )
    kept = None
    if variant.draft_vocab:
        kept = frequent_tokens(data, variant.draft_vocab, {tokenizer.eos_token_id})
    target.requires_grad_(False)
    borrowed = Borrowed(target, tokenizer.mask_token_id, own_mask=variant.mask_embedding, kept=kept)
    features = capture(target, data, list(variant.target_layer_ids))
    drafter = train_drafter(borrowed, features, data, Qwen3Config.from_dict(native), args)
    config = native
    if variant.style == "speculators":
        config = variants.speculators_config(native, variant, TARGET_ID)
    save_drafter(drafter, borrowed, config, variants.folder_of(args))


def main() -> None:
    """Train what the command line asks for."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    examples = corpus.held_out(args.seed)
    for half, make in (("target", make_target), ("drafter", make_drafter)):
        if args.only in (None, half):
            wall, cpu = time.perf_counter(), time.process_time()
            make(args, examples)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"{half} done in {wall:.0f} s, {cpu:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
