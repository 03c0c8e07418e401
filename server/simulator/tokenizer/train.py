"""Makes the simulator's tokenizer from `corpus.txt`: the same corpus always gives the same files.

Usage: `python -m server.simulator.tokenizer.train [FOLDER]` (default: beside this file).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from server.simulator.tokenizer import folder

VOCABULARY = 4096
BOS, EOS, TURN_START, TURN_END = "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CAPITALISED = 300
"""How many of the commonest words are learnt with a capital too."""


def corpus() -> Iterator[str]:
    """Lines of text in which word number r appears about in proportion to 1/r (Zipf), as words do in English.

    Nothing is drawn at random: trainings can differ only if `corpus.txt` does.
    """
    words = (folder() / "corpus.txt").read_text(encoding="ascii").split()
    for rank, word in enumerate(words):
        times = 2 + 20_000 // (rank + 10)
        yield f" {word}" * times
        yield "\n".join([word] * (times // 10))
        if rank < CAPITALISED:
            yield f" {word.capitalize()}" * (times // 4)
            yield "\n".join([word.capitalize()] * (times // 8))
    yield "\n\n" * 400 + "    " * 400
    for mark in (",", ".", ":", ";", "?", "!", "'s", "n't", " (", ")", '"', " -", "..."):
        yield f"{mark} a" * 400


def train() -> PreTrainedTokenizerFast:
    """Byte-level BPE of `VOCABULARY` entries: any text can be written, and a digit is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in (BOS, EOS, TURN_START, TURN_END)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        chat_template=CHAT_TEMPLATE,
        # Above every context that the simulator serves, so that counting a long text never warns.
        model_max_length=1 << 24,
        clean_up_tokenization_spaces=False,
    )


def main(argv: list[str]) -> int:
    """Trains and saves into the folder given as the only argument, or beside this file."""
    target = Path(argv[0]) if argv else folder()
    train().save_pretrained(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
