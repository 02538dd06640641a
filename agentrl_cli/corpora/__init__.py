"""What the embedded models were taught with: generated texts, never an expert's play."""
