"""How things look, and the small parts that several rooms are made of. It knows no chat."""
