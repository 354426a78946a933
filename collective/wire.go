package collective

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The protocol between the process of rank 0 and that of another rank: frames of a kind (u8), three
// zero bytes, the bytes of the payload (u32) and the payload, little-endian. Each field is bounded
// before it is used, and memory for a payload grows with the bytes that arrive.

// maxWhat is the most bytes of the description of a call.
const maxWhat = 256

// magic starts a hello: the protocol and its version.
const magic = "pwcgroup\x01"

// frameKind is the kind of a frame.
type frameKind uint8

const (
	frameHello   frameKind = 1 + iota // a rank wants to join: hello
	frameWelcome                      // all ranks have joined
	frameRefuse                       // the rank may not join: a text
	frameGive                         // an exchange of a rank: its description and bytes
	frameAll                          // the bytes of all ranks
	frameEnd                          // the group has ended: an error
	frameLeave                        // the rank has closed the group
	frameBeat                         // sent every beatEvery
	frameKinds
)

const (
	frameHeader = 8
	maxText     = 4 << 10 // bytes of a refusal or an error
	maxHello    = len(magic) + 2*4 + 2 + maxName + 2 + MaxToken + maxSecret
)

// frame is a frame.
type frame struct {
	kind    frameKind
	payload []byte
}

// errFrame is wrapped by errors of bytes that are not a valid frame.
var errFrame = errors.New("collective: bytes that are not of the protocol")

// limit returns the most bytes of a payload in a group of size ranks.
func (k frameKind) limit(size int) int {
	switch k {
	case frameHello:
		return maxHello
	case frameRefuse, frameEnd:
		return maxText
	case frameGive:
		return maxGive
	case frameAll:
		return 8*size + size*(MaxExchange+8)
	}
	return 0
}

// maxGive is the most bytes of the payload of a frameGive.
const maxGive = 8 + maxWhat + MaxExchange

// appendFrame appends a frame.
func appendFrame(b []byte, k frameKind, payload []byte) []byte {
	b = append(b, byte(k), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// readFrame reads a frame, in a group of size ranks.
func readFrame(r io.Reader, size int) (frame, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return frame{}, err
	}
	f, n := frame{kind: frameKind(h[0])}, int64(binary.LittleEndian.Uint32(h[4:]))
	if f.kind == 0 || f.kind >= frameKinds || h[1]|h[2]|h[3] != 0 {
		return frame{}, fmt.Errorf("%w: a frame that starts with % x", errFrame, h)
	}
	if limit := f.kind.limit(size); n > int64(limit) {
		return frame{}, fmt.Errorf("%w: a payload of %d bytes, the most of kind %d is %d", errFrame, n, f.kind, limit)
	}
	var b bytes.Buffer
	if got, err := io.CopyN(&b, r, n); err != nil {
		if got < n && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	f.payload = b.Bytes()
	return f, nil
}

// hello is the payload of a rank's first frame.
type hello struct {
	rank, size  int
	name, token string
}

func (h hello) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte(magic), uint32(h.rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.size))
	for _, s := range []string{h.name, h.token} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
		b = append(b, s...)
	}
	return b
}

func decodeHello(b []byte) (hello, error) {
	var h hello
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok || len(rest) < 8 {
		return h, fmt.Errorf("%w: a hello without %q: the processes are of different versions of pwc, or another program's", errFrame, magic)
	}
	h.rank, h.size = int(int32(binary.LittleEndian.Uint32(rest))), int(int32(binary.LittleEndian.Uint32(rest[4:])))
	rest = rest[8:]
	for _, s := range []*string{&h.name, &h.token} {
		if len(rest) < 2 || len(rest)-2 < int(binary.LittleEndian.Uint16(rest)) {
			return h, fmt.Errorf("%w: a hello that is cut off", errFrame)
		}
		n := int(binary.LittleEndian.Uint16(rest))
		*s, rest = string(rest[2:2+n]), rest[2+n:]
	}
	if len(rest) > 0 || len(h.token) > MaxToken+maxSecret {
		return h, fmt.Errorf("%w: a hello with a token of %d bytes, and %d bytes after it", errFrame, len(h.token), len(rest))
	}
	return h, checkGroup(h.name, h.rank, h.size)
}

// encodeGive encodes an exchange of a rank. Its data start at a multiple of 8 bytes.
func encodeGive(what string, data []byte) []byte {
	b := make([]byte, 8, 8+len(what)+8+len(data))
	binary.LittleEndian.PutUint64(b, uint64(len(what)))
	b = pad(append(b, what...))
	return append(b, data...)
}

func decodeGive(b []byte) (what string, data []byte, err error) {
	if len(b) < 8 {
		return "", nil, fmt.Errorf("%w: an exchange without a description", errFrame)
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxWhat || len(b) < int(8+n+7)&^7 {
		return "", nil, fmt.Errorf("%w: an exchange of %d bytes, %d of them a description", errFrame, len(b), n)
	}
	return string(b[8 : 8+n]), b[(8+n+7)&^7:], nil
}

// encodeAll encodes the bytes of all ranks. Those of each rank start at a multiple of 8, so that
// numbers are aligned in the receiver's memory.
func encodeAll(all [][]byte) []byte {
	n := 8 * len(all)
	for _, d := range all {
		n += len(d) + 7
	}
	b := make([]byte, 0, n)
	for _, d := range all {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(d)))
	}
	for _, d := range all {
		b = pad(append(b, d...))
	}
	return b
}

func decodeAll(b []byte, size int) ([][]byte, error) {
	if len(b) < 8*size {
		return nil, fmt.Errorf("%w: %d bytes from %d ranks", errFrame, len(b), size)
	}
	all, rest := make([][]byte, size), b[8*size:]
	for i := range all {
		n := binary.LittleEndian.Uint64(b[8*i:])
		if n > MaxExchange || len(rest) < int(n+7)&^7 {
			return nil, fmt.Errorf("%w: rank %d gave %d bytes, and %d bytes are left", errFrame, i, n, len(rest))
		}
		all[i], rest = rest[:n:n], rest[(n+7)&^7:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the data of the ranks", errFrame, len(rest))
	}
	return all, nil
}

// pad appends zeros up to a multiple of 8 bytes.
func pad(b []byte) []byte {
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
