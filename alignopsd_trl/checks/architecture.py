"""What a policy's architecture allows under a configuration; its weights may be on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import Embedding

from alignopsd_trl.models import resolve_model
from alignopsd_trl.scoring.packing import depends_on_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from alignopsd_trl.config import AlignOPSDConfig
    from alignopsd_trl.methods import Method


def check_architecture(model: PreTrainedModel, args: AlignOPSDConfig, method: Method) -> None:
    """Raises `ValueError` for a model that can't be trained over turn rows, or not under this configuration."""
    config: Any = model.config.get_text_config()
    if getattr(config, "num_hidden_layers", 1) < 1:
        raise ValueError(f"the model has num_hidden_layers={config.num_hidden_layers}; take one with layers")
    declared = getattr(config, "router_aux_loss_coef", 0.0)
    balanced = declared if args.router_aux_loss_coef is None else args.router_aux_loss_coef
    if hasattr(config, "output_router_logits") and balanced != 0.0:
        raise ValueError(
            "a mixture-of-experts load-balancing loss is a mean per micro-batch, which sub-chunks would change; "
            "set router_aux_loss_coef=0.0"
        )
    if args.merges_rows and (unmerged := depends_on_length(config)):
        raise ValueError(f"merge_rows=True would change what this model computes: {unmerged}; set merge_rows=False")
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier")
    changed = [f"{name}={getattr(config, name)}" for name in names if getattr(config, name, None) not in (None, 1)]
    if changed and method.kept_logits and getattr(method, "needs_matches", False):
        raise ValueError(
            "auxiliary_loss='distribution' mixes views where the head makes logits, which this model changes "
            f"afterwards ({changed[0]}); use rectify=False"
        )
    words, positions = model.get_input_embeddings(), getattr(config, "max_position_embeddings", None) or 0
    tables = [one.num_embeddings for one in model.modules() if isinstance(one, Embedding) and one is not words]
    learned = any(positions <= number <= positions + 2 for number in tables)
    if why := depends_on_length(config) or ("they are learned" if learned else None):
        given = {**vars(config), **(getattr(config, "rope_parameters", None) or {})}
        told = beyond_positions(given.get("original_max_position_embeddings") or positions, args)
        if told:
            raise ValueError(f"{told} ({why}: beyond, there are none or log-probs depend on the batch)")


def beyond_positions(positions: int | None, args: AlignOPSDConfig) -> str:
    """Returns a note if turns may exceed so many positions of a model, else an empty text."""
    response = max(args.max_completion_length, args.teacher_max_completion_length or 0)
    if not positions or args.max_prompt_length + response <= positions:
        return ""
    room = f"max_prompt_length={positions - response} or less" if response < positions else "shorter responses"
    return (
        f"the model was made for {positions} positions, and max_prompt_length={args.max_prompt_length} with responses "
        f"of {response} tokens may need more; set {room}"
    )


def positions_of(name: str, trust_remote_code: bool) -> int | None:
    """Returns the number of positions of a model's folder; `None` if none are stated or the model is elsewhere."""
    from transformers import AutoConfig

    folder = Path(resolve_model(name)).expanduser()
    if not (folder / "config.json").is_file():
        return None
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return getattr(config.get_text_config(), "max_position_embeddings", None)
