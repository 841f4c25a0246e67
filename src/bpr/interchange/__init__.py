"""Exchange with other software: codes with Faiss and numpy, results with DPR, Pyserini, FiD and TREC's tools.

    stored = faissfile.read("index.faiss")                       # or arrays.read("codes.npy", "ids.txt")
    codes.into_bundle(stored, "passages.tsv", "wiki.bpr")        # their codes, searched by bpr
    codes.out_of_bundle("wiki.bpr", "codes.faiss")               # and the other way
    for each in results.read("retrieved.json"): ...              # questions and what was found for them

The command line (`bpr convert`, `bpr score`) calls it. None of that software is imported: files are read and written
here, byte by byte, and no file is trusted.
"""
