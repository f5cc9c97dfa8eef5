"""Contenders that are compared by default, and those of the ladder: PEER or PEER:METHOD each."""

BASELINE = "transformers"
HERE = (
    "transformers:prompt_lookup_num_tokens=10,max_matching_ngram_size=2",
    "transformers:prompt_lookup_num_tokens=3,max_matching_ngram_size=2",
    "transformers:assistant=demo_drafter,num_assistant_tokens=5,assistant_confidence_threshold=0.4",
    "specdec:autoregressive",
    "specdec:autoregressive+numerics=exact",
    "specdec:auto",
    "specdec:prompt_lookup:max_ngram=2,num_tokens=10,prefer=first",
    "specdec:prompt_lookup:max_ngram=2,num_tokens=3",
    "specdec:prompt_lookup:max_ngram=2,num_tokens=3+numerics=exact",
    "specdec:lookahead:N=5,W=7,G=7",
    "specdec:draft_model:model=demo_drafter,num_tokens=5,confidence=0.4",
)
ELSEWHERE = {  # these run where an environment is given, or was made
    "specdec": ("specdec:autoregressive+backend=openvino", "specdec:auto+backend=openvino"),
    "lade": ("lade:N=5,W=7,G=7",),
    "vllm": (
        "vllm",
        "vllm:method=ngram,num_speculative_tokens=10,prompt_lookup_max=2,prompt_lookup_min=1",
        "vllm:method=suffix",
        "vllm:method=custom_class,model=specdec_vllm.Proposer,num_speculative_tokens=16",
    ),
    "openvino": (
        "openvino",
        "openvino:prompt_lookup=5,max_ngram_size=3",
        "openvino:precision=default",
        "openvino:prompt_lookup=5,max_ngram_size=3,precision=default",
    ),
}


_IN_LLAMA_CPP = {"int8": "q8_0", "int4": "q4_0"}
_OWN_CACHE = "cache-type-k=f16,cache-type-v=f16"  # llama.cpp's default, and its fastest
_NGRAMS = "spec-type=ngram-simple,spec-ngram-simple-size-n=2,spec-ngram-simple-size-m=5"


def contenders(given: list[str] | None, pythons: dict[str, str]) -> list[str]:
    """The selected contenders, or all with an environment; the baseline first."""
    default = [*HERE, *(name for peer in pythons for name in ELSEWHERE.get(peer, ()))]
    return list(dict.fromkeys([BASELINE, *(default if given is None else given)]))


def ladder(weights: str, head: str = "") -> list[str]:
    """The fastest ways to decode one model on a CPU, engine by engine, with rounded weights or without.

    llama.cpp's drafts by a trained head aren't among them: a step takes 0.45 s on two cores.

    Args:
        weights: ``model``, or ``int8`` or ``int4`` for engines that round weights.
        head: folder of a trained head, for the engines that draft by one.
    """
    names = [BASELINE, *_ours(weights, head), *_genai(weights, head)]
    if weights == "model":
        names += ["llamacpp", f"llamacpp:{_NGRAMS}", "vllm", "vllm:method=suffix"]
        names += [f"vllm:method=eagle3,model={head},num_speculative_tokens=3"] if head else []
    else:
        rounded = f"weights={_IN_LLAMA_CPP[weights]},{_OWN_CACHE}"
        names += [f"llamacpp:{rounded}", f"llamacpp:{_NGRAMS},{rounded}", f"{BASELINE}:weights={weights}"]
    return names


def _ours(weights: str, head: str) -> list[str]:
    """specdec on OpenVINO, and with the checkpoint's weights on torch and with the paper's strategies."""
    on_openvino = "+backend=openvino" + (f":weights={weights}" if weights != "model" else "")
    fast = ["autoregressive", "auto"]
    exact = ["auto"]
    if head:
        fast.append(f"auto+eagle3:head={head}")
        exact.append(f"auto+eagle3:head={head}")
    if weights == "model":
        fast += ["prompt_lookup:num_tokens=5,max_ngram=3", "lookahead:N=3,W=3,G=3"]
    on_torch = "autoregressive", "auto"
    names = [f"specdec:{proposer}+numerics=fast" for proposer in on_torch] if weights == "model" else []
    names += [f"specdec:{proposer}{on_openvino}+numerics=fast" for proposer in fast]
    return names + [f"specdec:{proposer}{on_openvino}+numerics=exact" for proposer in exact]


def _genai(weights: str, head: str) -> list[str]:
    """OpenVINO GenAI; with rounded weights also in its own choice of precision, the fastest it has."""
    drafts = ["", "prompt_lookup=5,max_ngram_size=3"]
    if head:
        chain, tree = "num_assistant_tokens=3", "num_assistant_tokens=8,tree_depth=3,branching_factor=4"
        drafts += [f"head={head},{chain}", f"head={head},{tree}"]
    rounded = "" if weights == "model" else f"weights={weights}"
    names = ["openvino:" + ",".join(filter(None, [draft, rounded])) for draft in drafts]
    if rounded:
        names.append(f"openvino:prompt_lookup=5,max_ngram_size=3,{rounded},precision=default")
    return [name.removesuffix(":") for name in names]
