"""Extensions as real patches (`*.patch`), each applied to a copy of the tree and tried there."""
