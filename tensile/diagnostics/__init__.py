"""What placement says of clusters as they are, for a person: `tensile explain` and `tensile simulate`."""
