"""Models: loading, fingerprints of what a model computes, and properties of its code."""

from typing import TYPE_CHECKING

from specdec.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from specdec.models.architecture import attention_kinds as attention_kinds
    from specdec.models.architecture import name_of as name_of
    from specdec.models.architecture import shapes_of as shapes_of
    from specdec.models.attention_switch import why_fixed as why_fixed
    from specdec.models.checkpoint_files import model_file as model_file
    from specdec.models.fingerprint import fingerprint_of as fingerprint_of
    from specdec.models.gguf_file import is_gguf as is_gguf
    from specdec.models.gradients import own_logits as own_logits
    from specdec.models.gradients import without_autocast as without_autocast
    from specdec.models.hub import HubAnswer as HubAnswer
    from specdec.models.loading import ModelSource as ModelSource
    from specdec.models.loading import load_pretrained as load_pretrained
    from specdec.models.loading import load_pretrained_tokenizer as load_pretrained_tokenizer
    from specdec.models.notes import remembered as remembered
    from specdec.models.token_weights import embeddings_of as embeddings_of
    from specdec.models.token_weights import output_rows_of as output_rows_of
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
