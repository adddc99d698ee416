"""Asks llama.cpp for the tokens of many texts, by many GGUF files, before any tokenizer here sees them.

    python tests/data/gguf/collect.py [NAME=FILE.gguf ...] > tests/data/gguf/tokens.json

Needs `xllamacpp`, `gguf` and `numpy`, best in an environment of their own. The small files of `files.py` are always asked;
real ones are named on the command line: `gemma-3-270m` and `smollm2-135m-instruct`. Takes a minute.
"""

import json
import pathlib
import random
import sys
import tempfile
import urllib.request

import files
import xllamacpp

WRITTEN = (
    "", "a", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", " \n ", "Hello world", " Hello", "  Hello", "Hello ",
    "Hello  world", "The capital of France is", "It's, isn't it? I'LL GO, they'Ve", "1", "12", "123", "1234", "12345",
    "1234567", " 12", "  12", "x1 = 3.14159", "        54,", "a1b22c333", "½ ² ٣ ௧", "naïve café straße", "É é Ｅ ǅ",
    "你好，世界！", "こんにちは世界", "안녕하세요", "Привет, мир", "مرحبا بالعالم", "नमस्ते दुनिया", "שלום", "😀😃🇫🇷", "👩‍👩‍👧",
    "e\u0301", "\u00a0x\u2003y\u200bz", "a\r\nb\rc", "!!!", "?!...", "(a)[b]{c}", "barFoo xrFy", "foo_bar fooBar FooBar FOOBAR", "HTTPServer",
    "email@example.com", "https://example.com/a/b?c=d&e=f", "def f(x):\n    return x + 1\n", "if (a&&b) { c(); }\t// d",
    "<s>", "</s>", "<s>Hello</s>", "<unk>", "<|turn|>user\nHi<|turn|>", "<|endoftext|>", "<|begin|>a <think> b",
    "<bos>", "<start_of_turn>user\nHi<end_of_turn>\n", "<|im_start|>user\nHi<|im_end|>\n", "<0x41>", "▁x", "Ġx", "a▁b",
    "don't stop", "100% sure!! $5.00 #1", "a  b   c    d     e", "\n    \n  x", "tail   ", "tail \n", "zażółć gęślą jaźń",
    "\u0000\u0001", "\ufeffbom", "x" * 40, "ab" * 20, "1" * 20, "- [ ] item\n- [x] item", "'s 'S 't 'll", "…—–-", "«»“”",
)  # fmt: skip
ALPHABET = "aaeiou tn rs  \n\t0123456789.,!?'-_()/éßñÅ你世界こЖя😀"


def texts() -> list[str]:
    """What is asked: by hand, cut from the corpus, and random."""
    drawn = random.Random(0)
    cut = [
        files.CORPUS[(at := drawn.randrange(len(files.CORPUS) - 40)) : at + drawn.randrange(3, 40)] for _ in range(30)
    ]
    mixed = ["".join(drawn.choices(ALPHABET, k=drawn.randrange(2, 24))) for _ in range(30)]
    return list(dict.fromkeys([*WRITTEN, *cut, *mixed]))


def tokens(path: pathlib.Path, asked: list[str]) -> dict[str, list[list[int]]]:
    """Ids with what belongs around a text and special tokens found in it, and ids of the plain characters."""
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.warmup, settings.n_gpu_layers, settings.port = (
        str(path),
        64,
        False,
        0,
        0,
    )
    server = xllamacpp.Server(settings)

    def ask(text: str, whole: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": whole, "parse_special": whole}).encode()
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    return {"whole": [ask(text, True) for text in asked], "plain": [ask(text, False) for text in asked]}


def main() -> None:
    """Prints the table."""
    asked = texts()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, fields in files.FILES.items():
            found[name] = tokens(files.write(pathlib.Path(scratch) / f"{name}.gguf", **dict(fields)), asked)
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        found[name] = tokens(pathlib.Path(path), asked)
    lines = [f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in found.items()]
    sys.stdout.write('{"texts": ' + json.dumps(asked) + ',\n"files": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
