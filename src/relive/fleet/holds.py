class Holds:
    def __init__(self, *a):
        pass
