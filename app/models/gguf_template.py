"""The chat template of a GGUF file: which one, and whether it makes text from a conversation."""

from __future__ import annotations

from collections.abc import Mapping

from app.models.chat_template import ChatTemplate, ChatTemplateError
from app.models.gguf_file import GgufFile

_KEY = "tokenizer.chat_template"
_QUESTION = "Grüße, 世界! 🙂  x = 1024;\n\tif (a<=b) { don't(); }"
# Writes nothing. Behind the new line, which Jinja takes away with it, the template begins as it did at the top.
_PREFIX = "{{ bos_token }}{% set bos_is_written = true %}\n"


def chat_template(gguf: GgufFile, special: Mapping[str, str], *, add_bos: bool) -> str:
    """The file's template, which writes BOS once where the model wants it.

    llama.cpp, for which the file was made, puts BOS before what the template writes, unless that begins with it;
    Hugging Face's tokenizers leave all to the template. So BOS goes into the template where it is missing.

    Args:
        special: The tokens a template may name: "bos_token", "eos_token" and so on.
        add_bos: Whether the model wants BOS at the beginning.

    Raises:
        ModelFileError: there is no template, or it doesn't work.
    """
    # The unnamed one is for chats. There may be others beside it (for tools, for documents), each with a name.
    key = next((key for key in (_KEY, f"{_KEY}.default") if gguf.has(key)), None)
    if key is None:
        raise gguf.refused(
            "it has no chat template (is it a base model?), so it can't hold a conversation; choose an instruct "
            "version of the model"
        )
    text = gguf.text(key)
    question = {"role": "user", "content": _QUESTION}
    try:
        template = ChatTemplate(text, special)
        written = template.render([question])
        # Nobody needs the first answer to be in the text: some templates leave out what was thought.
        later = template.render([question, {"role": "assistant", "content": "Yes."}, question])
    except ChatTemplateError as error:
        raise gguf.refused(f"its chat template doesn't work ({error})") from error
    if _QUESTION not in written or _QUESTION not in later:
        raise gguf.refused("its chat template leaves the message out")
    bos = special.get("bos_token")
    if add_bos and bos and not written.lstrip().startswith(bos):
        return _PREFIX + text
    return text
