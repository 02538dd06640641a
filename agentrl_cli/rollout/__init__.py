"""How episodes come to be: play, the chat template, replay, demonstrations."""
