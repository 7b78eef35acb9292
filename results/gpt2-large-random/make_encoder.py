"""Make an encoder of GPT-2 large's architecture with random weights, and a tokenizer trained on SST.

`python results/gpt2-large-random/make_encoder.py SST_FOLDER OUT`
"""

import sys
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2Model, PreTrainedTokenizerFast

from capsroute.lab.data import sst

END = "<|endoftext|>"


def main(folder: Path, out: Path) -> None:
    torch.manual_seed(0)
    bpe = ByteLevelBPETokenizer()
    texts = sst.load(folder, "train").text
    bpe.train_from_iterator(texts, vocab_size=50257, min_frequency=2, special_tokens=[END], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=END, bos_token=END, unk_token=END, model_max_length=1024
    )
    tokenizer.save_pretrained(out)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = GPT2Model(GPT2Config(n_embd=1280, n_layer=36, n_head=20))
    model.half().save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
