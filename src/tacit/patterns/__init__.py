"""What can be asked or protected: the tree, the language, and how patterns are matched."""
