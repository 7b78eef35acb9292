"""The grammar and the sentiment rules of the generated treebank."""
