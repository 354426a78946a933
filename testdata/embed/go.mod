module example.com/embed

go 1.26.0

require pwc v0.0.0

require (
	github.com/gofrs/flock v0.13.1 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace pwc => ../..
