"""What people and programs read: from the model's records to text and JSON. Nothing is measured here."""
