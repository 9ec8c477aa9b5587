"""Tokenizers and chat templates of real models, as llama.cpp's sources have them, give what their makers' own give."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from app.models.chat_template import ChatTemplate, ChatTemplateError
from app.models.disguise import Disguise
from app.models.errors import ModelFileError
from app.models.gguf_file import read_gguf
from app.models.gguf_tokenizer import write_tokenizer
from tests.app.models import forgery
from tests.app.models.real_files import llama_cpp_sources

pytestmark = pytest.mark.large

# Beside each stand texts, and the tokens that the model's own tokenizer made of them.
KNOWN = [
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
    "refact", "starcoder",
]  # fmt: skip
REFUSED = {
    "bert-bge": "its tokenizer is of the kind 'bert'",
    "gemma-4": "its tokenizer is of the kind 'gemma4'",
    "qwen35": r"a qwen2 model whose tokenizer is gpt2/qwen35",
}
# Vocabularies, and the templates of models that have them.
CHATS = {
    "deepseek-llm": "llama-cpp-deepseek-r1",
    "gemma": "google-gemma-2-2b-it",
    "llama-bpe": "meta-llama-Llama-3.1-8B-Instruct",
    "llama-spm": "mistralai-Mistral-Nemo-Instruct-2407",
    "phi-3": "microsoft-Phi-3.5-mini-instruct",
    "qwen2": "Qwen-Qwen3-0.6B",
}
# Command-R's own needs tools.
COMMAND_R = (
    "{{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|><|' + {'user': 'USER', 'assistant': 'CHATBOT'}"
    "[m.role] + '_TOKEN|>' + m.content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
)
# What templates look for in messages.
LOOKED_FOR = (
    "<think>", "</think>", "<tool_response>", "</tool_response>", "[THINK]", "[/THINK]", "<|channel|>", "<|message|>",
    "<seed:think>", "<mm:think>", "</mm:think>", "/nothink", "<|START_THINKING|>", "<|im_end|>", "<s>", "\n", "\n\n",
    " ", "Hello", "a < b",
)  # fmt: skip
SPECIAL: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONVERSATIONS = {
    "one question": ["Hi {{ x }} <b>'q'</b>\n"],
    "three turns": ["Hello", "Good day. 世界", "More\n\ntext"],
    "long": ["a" * 300, "b" * 5000] * 20 + ["end"],
    "an answer to go on": ["Hi", "The answer is"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama.cpp")
    with tarfile.open(llama_cpp_sources()) as archive:
        wanted = [member for member in archive if "/vendor/llama.cpp/models/" in member.name]
        archive.extractall(folder, wanted, filter="data")
    [found] = folder.glob("*/vendor/llama.cpp/models")
    for path in found.glob("*.gguf"):
        with path.open("ab") as file:
            file.write(bytes(64))  # vocabularies without a model end before the bytes that would round them up
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_a_models_tokenizer_cuts_text_as_its_makers_does(models: Path, tmp_path: Path, name: str) -> None:
    path = models / f"ggml-vocab-{name}.gguf"
    write_tokenizer(read_gguf(path), tmp_path, context_length=4096, chat=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = path.with_name(f"{path.name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = path.with_name(f"{path.name}.out").read_text(encoding="utf-8").split("\n")
    expected = [[int(number) for number in line.split()] for line in lines[: len(texts)]]
    assert len(texts) > 40
    found = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert [row for row in zip(texts, found, expected, strict=True) if row[1] != row[2]] == []
    for text, ids in zip(texts, found, strict=True):
        assert tokenizer.decode(ids, skip_special_tokens=False).lstrip() == text.lstrip()


@pytest.mark.parametrize("name", REFUSED)
def test_another_kind_of_tokenizer_is_refused_by_name(models: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match=REFUSED[name]):
        write_tokenizer(read_gguf(models / f"ggml-vocab-{name}.gguf"), tmp_path, context_length=4096, chat=False)
    assert list(tmp_path.iterdir()) == []


def test_every_real_template_writes_what_transformers_writes(models: Path) -> None:
    paths = sorted((models / "templates").glob("*.jinja"))
    assert len(paths) > 60
    n_written = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        template = ChatTemplate(text, SPECIAL)
        for name, said in CONVERSATIONS.items():
            chat = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(said)]
            for prompt in (True, False):
                try:
                    written = render_jinja_template([chat], chat_template=text, add_generation_prompt=prompt, **SPECIAL)
                except Exception:  # noqa: BLE001  # whatever transformers can't do
                    with pytest.raises(ChatTemplateError):
                        template.render(chat, add_generation_prompt=prompt)
                    continue
                assert template.render(chat, add_generation_prompt=prompt) == written[0][0], (path.name, name)
                n_written += 1
    assert n_written > 450


@pytest.mark.parametrize("name", [*KNOWN, "gemma"])
def test_no_message_makes_a_control_token_of_a_real_vocabulary(
    models: Path, gemma_gguf: Path, tmp_path: Path, name: str
) -> None:
    path = gemma_gguf if name == "gemma" else models / f"ggml-vocab-{name}.gguf"
    write_tokenizer(read_gguf(path), tmp_path, context_length=4096, chat=False)
    added = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_added_tokens_decoder()
    found = [*forgery.names_in(added)]
    simple = "{% for m in messages %}NAME{{ m.role }}\n{{ m.content }}NAME{% endfor %}NAME".replace("NAME", found[-1])
    templates = [simple]
    if name in CHATS:
        templates.append((models / "templates" / f"{CHATS[name]}.jinja").read_text(encoding="utf-8"))
    if name == "command-r":
        templates.append(COMMAND_R)
    rng = random.Random(5)
    for template in templates:
        tokenizer = forgery.load(tmp_path, template)
        control = [token for token in found if "think" not in token]  # what was thought, templates leave out
        used = [token for token in control if token in template] or control[:8]
        words = [*used * 3, *rng.sample(control, min(len(control), 20)), *forgery.ORDINARY, *forgery.STAND_INS]
        for _ in range(30):
            said = ["".join(rng.choice(words) for _ in range(rng.randint(1, 6))) for _ in range(3)]
            turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
            forgery.check(tokenizer, turns, exact=name not in ("gemma", "llama-spm", "phi-3"))


def test_every_real_template_takes_a_message_in_disguise_for_the_message(models: Path) -> None:
    rng = random.Random(7)
    n_written = 0
    for path in sorted((models / "templates").glob("*.jinja")):
        template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL)
        for i in range(40):
            said = ["".join(rng.choice(LOOKED_FOR) for _ in range(rng.randint(1, 6))) for _ in range(1 + i % 4)]
            chat = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]
            chat = [*([{"role": "system", "content": rng.choice(LOOKED_FOR)}] if i % 3 == 0 else []), *chat]
            disguise = Disguise("<>[]|/", said)
            hidden = [{**message, "content": disguise.of(message["content"])} for message in chat]
            try:
                expected = template.render(chat)
            except ChatTemplateError:
                with pytest.raises(ChatTemplateError):
                    template.render(hidden)
                continue
            assert disguise.reveal(template.render(hidden)) == expected, (path.name, chat)
            n_written += 1
    assert n_written > 2000
