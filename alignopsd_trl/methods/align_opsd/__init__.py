"""AlignOPSD: correspondence, rectification, spans and credit, and the method that connects them to a teacher."""
