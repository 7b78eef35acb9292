"""Published accuracies on the paper's three tasks, as its tables 2, 3 and 4 report them, and ours."""

from typing import NamedTuple

PAPER = "Heinsen, 2019, arXiv:1911.00792"


class Record(NamedTuple):
    """Accuracy of one network on one task."""

    method: str
    year: int
    accuracy: float  # per cent of the test split
    source: str  # publication, or our file under results/
    note: str = ""
    parameters: int | None = None  # trained ones, where known
    deviation: float | None = None  # standard deviation over seeds, where there are several

    @property
    def ours(self) -> bool:
        return self.source.startswith("results/")


SMALLNORB = (
    Record("CNN", 2011, 97.4, "Cireşan et al., 2011, arXiv:1102.0183", "distorted images in training", 2_700_000),
    Record("dynamic routing", 2017, 97.3, "Sabour et al., 2017, arXiv:1710.09829", parameters=8_200_000),
    Record("EM routing", 2018, 98.2, "Hinton et al., 2018, ICLR", parameters=310_000),
    Record("EM routing, crops", 2018, 98.6, "Hinton et al., 2018, ICLR", "mean of several crops a pair", 310_000),
    Record("the paper", 2019, 99.1, PAPER, parameters=272_000),
    Record("the author's weights", 2019, 98.81, "results/smallnorb/official.json", "on the JPEG copy", 271_688),
    Record("capsroute, five seeds", 2026, 97.89, "results/smallnorb/replicate.json", "on the JPEG copy", 271_688, 0.25),
)
SST5 = (
    Record("RNTN", 2013, 45.7, "Socher et al., 2013"),
    Record("CNN", 2014, 48.0, "Kim, 2014", "word2vec"),
    Record("Para-Vec", 2014, 48.7, "Le and Mikolov, 2014"),
    Record("LSTM", 2015, 49.1, "Wieting et al., 2015", "PP2B"),
    Record("DMN", 2015, 51.1, "Kumar et al., 2015", "GloVe"),
    Record("NSE", 2016, 52.8, "Munkhdalai and Yu, 2016", "GloVe"),
    Record("ByteLSTM", 2017, 52.9, "Radford et al., 2017", "82 million reviews"),
    Record("CT-LSTM", 2017, 53.6, "Looks et al., 2017", "word2vec"),
    Record("BCN+Char", 2017, 53.7, "McCann et al., 2017", "CoVe"),
    Record("BCN", 2018, 54.7, "Peters et al., 2018", "ELMo"),
    Record("SuBiLSTM+Char", 2018, 56.2, "Brahma, 2018", "CoVe"),
    Record("the paper", 2019, 58.5, PAPER, "frozen GPT-2 large", 140_480),
    Record(
        "capsroute, five seeds", 2026, 48.55, "results/sst5/routing/replicate.json", "frozen MiniLM-L6", 38_464, 0.42
    ),
)
SST2 = (
    Record("BCN+Char", 2017, 90.3, "McCann et al., 2017", "CoVe"),
    Record("block-sparse LSTM", 2017, 93.2, "Radford et al., 2017"),
    Record("BERT", 2018, 94.9, "Devlin et al., 2018, arXiv:1810.04805"),
    Record("Snorkel", 2018, 96.2, "Ratner et al., 2018", "several tasks, ensemble"),
    Record("MT-DNN", 2019, 95.6, "Liu et al., 2019", "several tasks"),
    Record("MT-DNN", 2019, 96.5, "Liu et al., 2019", "several tasks, ensemble"),
    Record("XLNet", 2019, 96.8, "Yang et al., 2019, arXiv:1906.08237", "several tasks, ensemble"),
    Record("the paper", 2019, 95.6, PAPER, "frozen GPT-2 large", 138_944),
    Record(
        "capsroute, five seeds", 2026, 86.14, "results/sst2/routing/replicate.json", "frozen MiniLM-L6", 36_928, 0.37
    ),
)
