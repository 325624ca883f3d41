"""Writes the folders and reference answers beside this file. Run with transformers, sentencepiece and protobuf:

    python tests/golden/tokenizers/make.py [NAME=PUBLISHED_TOKENIZER_JSON ...]

Three small tokenizers are trained on the text below, in the forms that published models use; what transformers
(or sentencepiece itself) answers for them goes to cases.json. With names of GGUF pre-tokenizers and paths of
published tokenizer.json files that follow them, pretokenizers.json is written too: how the published files cut
texts into words. gemma3=PATH writes gemma3_ids.json: ids by the published tokenizer.json of Gemma 3.
"""

import io
import json
import re
import sys
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

HERE = Path(__file__).parent
TEXT = """
The river was low that summer, and the children walked across it without getting their knees wet.
In 1987 the bridge carried 1200 carts a day; by 2024 it carried none. "Why?" asked the girl. It's closed, they'll say.
def area(width, height):
    if width <= 0:
        return None
    return width * height  # square metres

Der Fluss war flach, und die Kinder liefen hinüber. Où est la rivière ? Elle était très basse cet été-là.
川は浅く、子どもたちは歩いて渡った。 Река была мелкой, и дети перешли её вброд.
""".strip()
TEXTS = [
    "", "a", " ", "Hello world", "  two leading", "a  b   c    d", "trailing  ", "It's 12345 o'clock, they'LL SAY",
    "\n\n1", "x\r\ny\t\tz", "def f(x):\n    return x**2\n", "über Où rivière", "u\u0308ber e\u0301te\u0301",
    "川は浅く 한국어 \U0001f600\U0001f468\u200d\U0001f469", "\x00\x07", "▁ already ▁▁ marked", "½ ² Ⅷ १२३",
    "<|im_start|>user\nhi<|im_end|>\n", "<|eot_id|> <|eot_id|>x", "<s>Hi</s>", "a<think> b</think>", "<0x0A>",
]
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = (
    "{{ bos_token }}\n{%- if tools %}\n    {%- for tool in tools %}\n{{ tool | tojson }}\n    {%- endfor %}\n"
    "{%- endif %}\n"
    "{%- for m in messages if m.role != 'system' %}\n    {%- if loop.index > 3 %}{% break %}{% endif %}\n"
    "    {%- generation %}<{{ m.role }}>{{ m.content | trim }}{% endgeneration %}\n{%- endfor %}"
)
ASK = [{"role": "user", "content": "Où est la rivière ?"}]
TALK = [*ASK, {"role": "assistant", "content": "Là, près du "}]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"wo": "Straße"}}}
CHATS = [
    {"messages": ASK}, {"messages": TALK, "add_generation_prompt": False},
    {"messages": TALK, "add_generation_prompt": False, "continue_final_message": True},
    {"messages": ASK, "tools": [TOOL]},
]


def write(folder: Path, name: str, value: object) -> None:
    """One line an entry, lists of ids within it."""
    folder.mkdir(exist_ok=True)
    lines = json.dumps(value, ensure_ascii=False, indent=1)
    lines = re.sub(r"\[\s*(-?\d+(?:,\s*-?\d+)*)\s*\]", lambda ids: "[" + re.sub(r"\s+", " ", ids[1]) + "]", lines)
    (folder / name).write_text(lines + "\n", encoding="utf-8")


def byte_level(words: str, special: list[str], plain: list[str], nfc: bool, ignore_merges: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(words), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    return tokenizer


def make_llama3_form(folder: Path) -> None:
    """BOS by the file's own post-processor, templates by name, two ends of sequence."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer = byte_level(LLAMA3_WORDS, special, [], False, True)
    bos = special[0]
    template = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = [tokenizer.token_to_id(token) for token in special[1:]]
    write(folder, "generation_config.json", {"eos_token_id": ends})
    eos = {"__type": "AddedToken", "content": special[1], "lstrip": False, "rstrip": False, "normalized": False,
           "single_word": False, "special": True}
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos,
        "chat_template": [{"name": "default", "template": TURNS}, {"name": "tool_use", "template": TOOLS}],
    })


def make_qwen_form(folder: Path) -> None:
    """No BOS, text composed first, tokens that are added but not special, the template in a file of its own."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level(QWEN_WORDS, special, ["<think>", "</think>"], True, False)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TOOLS, encoding="utf-8")
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TURNS,
    })


def make_sentencepiece_form(folder: Path) -> None:
    """A sentencepiece model alone, with byte fallback and tokens added by the config."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=model, vocab_size=460, model_type="bpe",
        character_coverage=0.98, byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False, normalization_rule_name="identity", minloglevel=2,
        user_defined_symbols=["\n"],
    )
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    added = {"460": {"content": "<|im_start|>", "special": True}, "461": {"content": "<|im_end|>", "special": True},
             "462": {"content": "<think>", "special": False}}
    write(folder, "tokenizer_config.json", {
        "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
        "eos_token": "</s>", "unk_token": "<unk>", "added_tokens_decoder": added, "chat_template": TURNS,
        "legacy": True,
    })


def answers(folder: Path) -> dict:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = [(text, tokenizer.encode(text)) for text in TEXTS]
    return {
        "texts": [{"text": text, "ids": ids, "bare": tokenizer.encode(text, add_special_tokens=False),
                   "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                   "spelled": tokenizer.decode(ids, skip_special_tokens=False)} for text, ids in encoded],
        "chats": [{**chat, "text": tokenizer.apply_chat_template(
            **{"conversation": chat["messages"], "add_generation_prompt": True, "tokenize": False}
            | {key: value for key, value in chat.items() if key != "messages"})} for chat in CHATS],
    }


def sentencepiece_answers(folder: Path) -> dict:
    """Sentencepiece's own answers, for texts that hold no added token."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    encoded = [(text, processor.encode(text)) for text in TEXTS if "<" not in text]
    return {"texts": [{"text": text, "bare": ids, "ids": [processor.bos_id(), *ids], "decoded": processor.decode(ids)}
                      for text, ids in encoded]}


def word_cases(paths: dict[str, str]) -> dict:
    cases = {}
    for name, path in paths.items():
        tokenizer = Tokenizer.from_file(path)
        cases[name] = []
        for text in TEXTS:
            text = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
            cases[name].append([word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)])
    return {"texts": TEXTS, "words": cases}


def gemma3_ids(path: str) -> list[dict]:
    """Runs of white space are what a vocabulary rebuilt from scores gets wrong most easily."""
    tokenizer = Tokenizer.from_file(path)
    runs = [char * n for char in (" ", "\n", "\t") for n in (1, 2, 15, 16, 30, 31, 32, 33, 47, 64, 95, 200)]
    marks = ["▁▁", "a▁▁▁b", "\u2581 \u2581", "x[multimodal] y", "<unused7>", "<td> a </td>", "<start_of_image>"]
    texts = [*TEXTS, *runs, *(f"x{run}y" for run in runs), *marks]
    return [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in texts]


def main() -> None:
    make_llama3_form(HERE / "llama3_form")
    make_qwen_form(HERE / "qwen_form")
    make_sentencepiece_form(HERE / "sentencepiece_form")
    cases = {name: answers(HERE / name) for name in ("llama3_form", "qwen_form")}
    cases["sentencepiece_form"] = sentencepiece_answers(HERE / "sentencepiece_form")
    write(HERE, "cases.json", cases)
    paths = dict(item.split("=", 1) for item in sys.argv[1:])
    if "gemma3" in paths:
        write(HERE, "gemma3_ids.json", gemma3_ids(paths.pop("gemma3")))
    if paths:
        write(HERE, "pretokenizers.json", word_cases(paths))


if __name__ == "__main__":
    main()
