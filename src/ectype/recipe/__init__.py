"""What is computed (`spec`), where it runs (`placement`), and how both are read (`load`)."""
