"""MiMo's classes, as its checkpoints bring them: transformers runs this file with ``trust_remote_code``."""

from torch import nn
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import (
    Qwen2Attention,
    Qwen2ForCausalLM,
    Qwen2MLP,
    Qwen2Model,
    Qwen2RMSNorm,
)


class MiMoConfig(Qwen2Config):
    model_type = "mimo"

    def __init__(self, num_nextn_predict_layers=0, **kwargs):
        super().__init__(**kwargs)
        self.num_nextn_predict_layers = num_nextn_predict_layers


class MiMoMTPLayers(nn.Module):
    """A module for multi-token prediction, which the model's own passes don't run."""

    def __init__(self, config):
        super().__init__()
        for name in [
            "input_layernorm",
            "post_attention_layernorm",
            "token_layernorm",
            "hidden_layernorm",
            "final_layernorm",
        ]:
            setattr(self, name, Qwen2RMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.self_attn, self.mlp = Qwen2Attention(config, layer_idx=0), Qwen2MLP(config)


class MiMoModel(Qwen2Model):
    config_class = MiMoConfig

    def __init__(self, config):
        super().__init__(config)
        self.mtp_layers = nn.ModuleList(MiMoMTPLayers(config) for _ in range(config.num_nextn_predict_layers))


class MiMoForCausalLM(Qwen2ForCausalLM):
    config_class = MiMoConfig

    def __init__(self, config):
        super(Qwen2ForCausalLM, self).__init__(config)
        self.model, self.vocab_size = MiMoModel(config), config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
