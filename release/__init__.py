"""What a release is made with: distributions, and trying them in fresh environments."""
