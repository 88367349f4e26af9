"""Records of what models sampled: chains of calls, and the rows of tokens that trainers consume. Pure."""
