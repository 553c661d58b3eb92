"""Field types shared by the config models: strict, bounded, without guesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# Bounds only keep absurd numbers out of arithmetic; real values are far below.
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
# An anchor and at least one masked slot; published blocks have 7 to 16.
BlockSize = Annotated[int, Field(ge=2, le=4096)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
LayerId = Annotated[int, Field(ge=0, le=100_000)]
LayerIds = Annotated[list[LayerId], Field(min_length=1, max_length=1024)]
Depth = Annotated[int, Field(ge=1, le=1024)]
# What a norm adds under its root; from one on it would be all that counts.
Epsilon = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LayerType = Literal["full_attention", "sliding_attention"]
LayerTypes = Annotated[list[LayerType], Field(min_length=1, max_length=1024)]
Section = dict[str, Any]


class StrictModel(BaseModel):
    """Known keys are checked without coercion; unknown ones are kept for the ledger to judge."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


# Keys that any transformers config may carry and no DFlash engine reads, each with its reason.
TRANSFORMERS_NOISE: Mapping[str, str] = {
    "_name_or_path": "where the trainer loaded it from",
    "attention_dropout": "training only",
    "chunk_size_feed_forward": "a transformers memory option",
    "id2label": "a transformers base default",
    "initializer_range": "training only",
    "is_encoder_decoder": "a transformers base default",
    "label2id": "a transformers base default",
    "output_attentions": "a transformers output option",
    "output_hidden_states": "a transformers output option",
    "problem_type": "a transformers base default",
    "return_dict": "a transformers output option",
    "tie_word_embeddings": "no engine reads it: tensors say whose head and embedding count",
    "transformers_version": "version of the library that wrote the file",
    "use_cache": "the engines manage the cache themselves",
}
