"""Plans: costs, timing of an assignment, plans built from it, plans checked and kept."""
