"""One's own data: images in folders by class, tables of texts, files of arrays; read, checked and split."""
