"""Where papers, their programs and their mathematics disagree, and no claim of an experiment says it already.

Each is (paper, what it says, what is known, the experiment that shows more or "").
"""

DISAGREEMENTS = (
    (
        "STE-MM §5",
        "MLPs are trained for at most 100 epochs",
        "its program trains 5, and keeps the epoch that is best on test data",
        "",
    ),
    (
        "STE-MM §6.2",
        "sharpness, of data that is not named",
        "its program takes test data; here both are measured",
        "many-models",
    ),
    (
        "STE-MM §4.1",
        "every search begins from the identity",
        "its program goes on from the permutations, and the prices of assignments, of the step before",
        "as-published",
    ),
    (
        "Neuron Alignment E.4",
        "10 permutations are kept of a doubly stochastic matrix",
        "its program keeps 11",
        "",
    ),
    (
        "Neuron Alignment §4",
        "the learning rate is halved every 20 epochs",
        "its program also takes it times 0.9996 an epoch",
        "",
    ),
    (
        "Neuron Alignment Table 1",
        "the least accuracy along a curve",
        "on good curves that is the worse of its two ends, which no curve can change",
        "",
    ),
    (
        "Neuron Alignment C.1",
        "distances to aligned models are bounded, eq. 25",
        "proven of the bounds alone, not of the distances",
        "",
    ),
    (
        "Neuron Alignment C.2",
        "weights without negative entries that keep lengths make the bound tight",
        "square matrices that do are permutation matrices, and no others",
        "",
    ),
    (
        "Git Re-Basin §3.1",
        "correlation matches as well as inner products",
        "measured by others on VGG: accuracies of 42.2 and 67.5 %",
        "",
    ),
    (
        "Git Re-Basin §4",
        "positive where f ≥ 0",
        "all points that are positive have f = 0 exactly, so rounding decides: here f ≥ -1e-12 in float64",
        "counterexample",
    ),
    (
        "Git Re-Basin §5, footnote 3",
        "spherical interpolation",
        "whether of all weights as one vector or of each tensor is not said; here both are measured",
        "slerp",
    ),
    (
        "Git Re-Basin Figure 3",
        "early in training there is a barrier",
        "before training there is none, as both ends are at chance; shown relative to what they learnt, too",
        "onset",
    ),
    (
        "Git Re-Basin Figure 4",
        "no barrier for ResNet20 32 times as wide",
        "measured by others, by activations: 0.043 train, 0.161 test, 4.1 points of accuracy",
        "",
    ),
    (
        "Git Re-Basin A.8",
        "λ > 5dα",
        "permutations that differ do so in two places, so it is larger than it has to be",
        "hardness",
    ),
    (
        "Permutation Invariance in LMC, Definition 7",
        "a PQ index",
        "p, q and the first weights' spread are not in the text at hand: here two orders, three spreads",
        "learning-rate",
    ),
    (
        "Permutation Invariance in LMC §6",
        "networks are trained for 10000 epochs",
        "10 000 steps, 16.7 epochs of MNIST, are the only reading that fits its cost",
        "width",
    ),
    (
        "Permutation Invariance in LMC B.5",
        "convolutional networks on CIFAR-10 have the same peak",
        "their architecture is not given; here two convolutions and a linear layer",
        "cnn-width",
    ),
)
