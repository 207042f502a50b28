"""What the tests of all backends share: cases, the oracles and the accuracy bar."""
